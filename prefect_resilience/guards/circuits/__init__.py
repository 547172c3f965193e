"""Circuit breakers: they stop calls to a failing service for the whole fleet."""
