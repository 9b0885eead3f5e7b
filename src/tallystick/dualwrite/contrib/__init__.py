"""Dual writes inside the frameworks that own a request, a task or a message.

Each module needs its framework, and is imported by the applications that use it: `contrib.fastapi`,
`contrib.django`, `contrib.celery`, `contrib.faststream`. Nothing else imports them.
"""
