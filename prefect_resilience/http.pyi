from .calls.edge.adapter import ResilientAdapter as ResilientAdapter
from .calls.edge.elsewhere import BaseURL as BaseURL
from .calls.edge.transports import AsyncResilientTransport as AsyncResilientTransport
from .calls.edge.transports import ResilientTransport as ResilientTransport
