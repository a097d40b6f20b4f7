"""Language models behind one port: an HTTP server, vLLM in this process, recorded answers."""
