//! Texts from strangers as they are shown: nothing in them moves, hides or ends the text around
//! them.

use std::borrow::Cow;

use cairn_format::changes_its_surroundings;

/// Maximum characters of a shown text; 2000, more than anyone reads.
///
/// The longest C++ names have some ten thousand characters.
const MOST_CHARACTERS: usize = 2000;

/// Escapes control characters, characters without a width, and changes of direction.
///
/// They are written as `\n` or `\u{202e}`. A very long text is cut, with a sign of it.
///
/// ```
/// assert_eq!(cairn_web::shown("std::vector<int>"), "std::vector<int>");
/// assert_eq!(cairn_web::shown("two\nlines"), r"two\nlines");
/// assert_eq!(cairn_web::shown("evil\u{202e}txt.exe"), r"evil\u{202e}txt.exe");
/// ```
#[must_use]
pub fn shown(text: &str) -> Cow<'_, str> {
    let is_long = text.len() > MOST_CHARACTERS && text.chars().nth(MOST_CHARACTERS).is_some();
    if !is_long && !text.chars().any(changes_its_surroundings) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len().min(MOST_CHARACTERS) + 16);
    for character in text.chars().take(MOST_CHARACTERS) {
        if changes_its_surroundings(character) {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    if is_long {
        shown.push('…');
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_keeps_markup_and_spells_control_characters() {
        let cases = [
            ("<img src=x onerror=alert(1)>", "<img src=x onerror=alert(1)>"),
            ("שלום", "שלום"),
            ("a\0b\u{1b}[2Jc\u{85}", r"a\u{0}b\u{1b}[2Jc\u{85}"),
            ("\u{2066}x\u{2069}\u{200f}", r"\u{2066}x\u{2069}\u{200f}"),
            ("a\u{2028}b\u{feff}", r"a\u{2028}b\u{feff}"),
        ];
        for (text, expected) in cases {
            assert_eq!(shown(text), expected);
        }
    }

    #[test]
    fn a_very_long_text_is_cut_at_a_character() {
        let shown = shown(&"ä".repeat(5000)).into_owned();
        assert_eq!(shown.chars().count(), MOST_CHARACTERS + 1);
        assert!(shown.ends_with('…'));
    }
}
