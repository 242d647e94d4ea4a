"""A study: what the server and the sites agree on before the first question, and what every later question is held to."""
