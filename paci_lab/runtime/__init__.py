"""Interpreter 3: real ranks. `launch` starts an agent, the agent starts a worker per rank, all write the run directory."""
