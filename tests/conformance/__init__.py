"""What other systems do with the same input: cases of facts, run against our public functions.

    python -m tests.conformance FILE.json [FILE.json ...]

A case names an `api` (a form of question), what is given and what the reference answers. `apis/` answers each form
with our functions and knows no single case. `differences.toml` lists where we differ intentionally and what is not there
yet; a listed case is still run, and fails when it would pass, so that the list stays true.
"""
