"""Stores in tables of a lake: the rows are data files, and the commit that adds them is the decision.

They know the port `tallystick.lake.ports` alone, and no table format: `store` claims and decides,
`transaction` keeps the rows of a block, `rows` compares them with the table. docs/design/lake-tables.md.
"""
