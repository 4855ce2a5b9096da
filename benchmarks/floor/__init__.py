"""What an answer costs at the least: a bare socket server in Python, and a handler in Go as the peers write it."""
