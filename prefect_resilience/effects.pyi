from .durable import *  # noqa: F403
