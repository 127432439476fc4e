"""Images: what a user calls one, the tensors a request becomes, and what is kept of both."""
