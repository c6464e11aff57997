"""What is minimised: objectives with their targets, penalties, and maps of rows."""
