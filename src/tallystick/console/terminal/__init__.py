"""The console in a terminal: `tallystick top`.

    places, cursor      pure: where its user is, and how the cursor moves and keeps its place
    prompts             pure: what is typed, and where it leads
    action_stage        pure: an action from its choice to its result
    lines, frame        pure: a page as lines of visible text, and what surrounds it
    pages/              pure: a module for each page, from the view models that the browser's pages show
    summary             pure: the text of `--once`, and what it comes to
    once                looks once, without a terminal
    asker, action_panel ask what a single page shows, and take actions to the desk
    line_view, prompt_line, app, run  the Textual application (extra `top`), which nothing else loads

Text of others is `console.model.visible.Visible` before it is in a line, and nothing but lines is drawn.
docs/adr/0058.
"""
