"""Engine nodes that speak vLLM's prefill/decode dialect."""
