"""The console in a terminal, `tallystick top`: overview, transactions, actions, and the browser's addresses.

    routes, cursor      pure: the page and its subject, and the moves of the cursor
    prompts             pure: questions, and where their answers lead
    action_stage        pure: an action from its choice to its result
    lines, frame        pure: a page as lines of visible text, and the lines around it
    pages/              pure: a module for each page, from the view models that the browser's pages show
    summary             `--once`: one look without a terminal, its text and its outcome
    action_panel        takes actions to the service
    line_view, app, run  the Textual application (extra `top`), which nothing else loads

Text of others is `console.model.escaped.EscapedText` before it is in a line, and nothing but lines is drawn.
docs/adr/0058.
"""
