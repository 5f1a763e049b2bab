"""The style of charts and pages, by Bokeh (BSD-3-Clause): colours, figures, the style sheet of a page.

Backgrounds are transparent and texts of a middle grey, so that a page may be light or dark.
"""

from __future__ import annotations

from typing import Any

from psruntime.errors import UsageError

# After Okabe and Ito, Color universal design, 2008: distinct with any colour vision; visible on white and on black.
COLOURS = ("#2a86d8", "#e69f00", "#00a37a", "#d86fa8", "#8468d6", "#d55e00", "#7d8a2e")
GREY, GRID = "#7b8491", "#8a93a055"
HEIGHT = 300  # pixels, of a figure
# A page with the class `light` or `dark` on its body is so; without one it is as the browser prefers.
STYLE = """
:root { color-scheme: light dark; --text: #1c2026; --soft: #5b6470; --line: #d9dee5; --card: #ffffff; --page: #f4f6f8 }
@media (prefers-color-scheme: dark) {
  :root { --text: #e8ebef; --soft: #9aa4b1; --line: #333a44; --card: #1b1f25; --page: #121519 }
}
:root:has(body.light) { color-scheme: light;
  --text: #1c2026; --soft: #5b6470; --line: #d9dee5; --card: #ffffff; --page: #f4f6f8 }
:root:has(body.dark) { color-scheme: dark;
  --text: #e8ebef; --soft: #9aa4b1; --line: #333a44; --card: #1b1f25; --page: #121519 }
body { margin: 0 auto; max-width: 1200px; padding: 24px; background: var(--page); color: var(--text);
  font: 15px/1.45 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif }
h1 { font-size: 24px; margin: 0 0 4px } h2 { font-size: 16px; margin: 0 } p { margin: 0; color: var(--soft) }
.chip { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 7px; vertical-align: -1px }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); gap: 16px }
.grid { margin-top: 16px }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px; min-width: 0 }
"""


def require_bokeh(command: str) -> None:
    """Raises UsageError unless Bokeh is installed; it is in the extra of the command's name."""
    try:
        import bokeh.plotting  # noqa: F401
    except ImportError as error:
        raise UsageError(f"{command} draws with bokeh: pip install 'psruntime[{command}]'") from error


def colour_of(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def figure(height: int = HEIGHT, **more: Any) -> Any:
    """A figure as wide as its container; more: arguments of Bokeh's figure."""
    from bokeh import plotting

    made = plotting.figure(
        height=height, sizing_mode="stretch_width", toolbar_location=None, background_fill_color=None,
        border_fill_color=None, outline_line_color=None, min_border_right=12, **more,
    )  # fmt: skip
    for axis in made.axis:
        axis.axis_label_text_font_style = "normal"
        axis.axis_label_text_color = axis.major_label_text_color = GREY
        axis.axis_line_color = axis.major_tick_line_color = GREY
        axis.minor_tick_line_color = None
        axis.axis_label_text_font_size = axis.major_label_text_font_size = "12px"
    made.grid.grid_line_color = GRID
    return made
