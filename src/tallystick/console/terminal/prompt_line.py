"""The line below the page in which something is typed."""

from textual.widgets import Input

from tallystick.console.model.visible import show
from tallystick.console.terminal.prompts import LENGTH_MAX, Prompt


class PromptLine(Input):
    """Reads one line. What is pasted into it is made visible first: what is seen is what is typed."""

    DEFAULT_CSS = """
    PromptLine { height: 1; border: none; padding: 0; display: none; }
    PromptLine:focus { border: none; }
    PromptLine > .input--cursor { background: ansi_default; color: ansi_default; text-style: reverse; }
    """

    def __init__(self) -> None:
        """Ask for nothing yet."""
        super().__init__(id="prompt", select_on_focus=False)
        self.prompt: Prompt | None = None

    def replace(self, text: str, start: int, end: int) -> None:
        """Replace a part of the value."""
        super().replace(show(text, max_length=LENGTH_MAX), start, end)

    def ask(self, prompt: Prompt) -> None:
        """Ask for something; the answer comes as `Submitted`."""
        self.prompt = prompt
        self.max_length = prompt.length_max
        self.value = show(prompt.value, max_length=LENGTH_MAX)
        self.display = True
        self.focus()
        self.cursor_position = len(self.value)

    def close(self) -> Prompt | None:
        """Ask no more; return what was asked."""
        prompt, self.prompt = self.prompt, None
        self.display = False
        self.value = ""
        return prompt
