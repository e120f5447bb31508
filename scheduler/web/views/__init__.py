"""Views: one function for each page, from a request to what its template shows."""
