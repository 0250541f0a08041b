"""Charts that belong into a page: text as text, colours of the theme, no style of their own."""

import xml.etree.ElementTree as ET

from lib.plots import THEME, chart, inline_svg, styled


@styled
def drawn(title: str) -> str:
    figure, (axes,) = chart("steps of $N$ & more", "<loss>")
    axes.plot([0, 1, 2], [3, -1, 2], "o-", color=THEME["accent"])
    return inline_svg(figure, title)


def test_text_stays_text_and_colours_follow_the_theme() -> None:
    text = drawn("a < b")
    picture = ET.fromstring(text)
    assert picture.attrib == {"viewBox": "0 0 520 270", "role": "img", "aria-label": "a < b"}
    assert {"steps of $N$ & more", "<loss>", "−1"} <= {element.text for element in picture.iter()}
    assert "var(--accent)" in text
    assert "#" not in text.replace('href="#', "").replace("url(#", "")
    assert not any("style" in element.tag or "style" in element.attrib for element in picture.iter())


def test_the_same_chart_is_the_same_text() -> None:
    assert drawn("a") == drawn("a")
