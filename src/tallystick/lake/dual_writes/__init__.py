"""The dual writer's stores in tables of a lake: the commit that adds the rows is the decision.

They know the port `tallystick.lake.ports` alone, and no table format: `store` claims and decides, `model`
renews ids that are idle, `rows` compares rows with the table. docs/design/lake-tables.md.
"""
