"""Statistics: describes a span, infers a schema, and checks a span against it."""
