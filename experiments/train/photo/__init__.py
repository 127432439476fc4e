"""The recipe of the photograph model: from photographs and their objects to a LLaVA of our own."""
