from .calls.edge.adapter import ResilientAdapter as ResilientAdapter
from .calls.edge.elsewhere import BaseURL as BaseURL
from .calls.edge.http import AsyncResilientTransport as AsyncResilientTransport
from .calls.edge.http import ResilientTransport as ResilientTransport
