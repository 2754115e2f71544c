"""Inside a rank: what runs in the user's training process, as a guest. Standard library and wrapt only until Ray or
torch is in the process by the user's own doing."""
