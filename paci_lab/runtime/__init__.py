"""Interpreter 3, real ranks: `launch` starts an agent, the agent a worker per rank; all write the run directory."""
