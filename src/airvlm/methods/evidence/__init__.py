"""What AIR and its relatives compute of an image and its crops: prototypes, crops' tokens, transport, selection."""
