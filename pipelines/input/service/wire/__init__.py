"""The wire: what members of a service send each other, and how they prove who they are. Knows no other room."""
