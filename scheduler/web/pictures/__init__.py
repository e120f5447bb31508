"""Pictures: SVG that is made on the server; its colours are classes of the style sheet, and it says what it shows."""
