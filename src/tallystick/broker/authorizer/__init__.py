"""ACLs: what they are, what they allow, and the authorizer that handlers ask.

The names are Kafka's: AclBinding, ResourcePattern, AccessControlEntry, StandardAuthorizer.
"""
