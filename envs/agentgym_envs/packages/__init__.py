"""What environments share that run other people's packages in a Python of their own."""
