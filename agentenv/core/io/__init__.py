"""Reading and writing files so that nothing half-written is ever left."""
