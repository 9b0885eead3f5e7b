"""State of one dual write: the writer's life, its clusters and steps, and the block that is open.

transaction     base of both faces' `Transaction`: rows, savepoints, and the calls of a user's work
life            state of a writer, and the outcome of its last block
branch          one Kafka cluster of a writer: transactional id, producer and row
steps           named effects of the recipe, numbered and announced
offsets         consumer offsets that are committed with a block
headers         record headers that name the transaction
"""
