"""The console in a browser: routes, templates, and the scripts that are shipped with them.

    app         the Starlette application
    pages       the table of pages: URL, template, view model
    action_pages  dry runs and the forms that confirm them, where actions are allowed
    guard       who may ask: host names, credentials, and the headers of every answer
    templates/  Jinja2; they place what a view model holds, and decide nothing
    static/     the style sheet, and vendored scripts with their licences (docs/adr/0058)

Needs the extra `console`.
"""
