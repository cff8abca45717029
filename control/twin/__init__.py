"""The digital twin: what would happen if, answered by the gateway's own rules over a fluid model of a fleet."""
