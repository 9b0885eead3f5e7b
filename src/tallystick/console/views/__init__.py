"""View models: what each page shows, as values. Pure.

A module for each page builds its model from a `ConsoleState` and what the URL asks for. The page, its JSON
form (`?format=json`) and the terminal show the same model, so its fields are the console's API: plain
numbers in the unit of their name, and text without markup. Nothing here formats HTML, and nothing reads a
clock: the time is an argument.
"""
