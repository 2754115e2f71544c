"""The debugger prompt: pdb's commands over a rank's session. What a command says is text; only `terminal` prints."""
