"""Example: an agent with two providers, and a person who approves before its reply is sent."""
