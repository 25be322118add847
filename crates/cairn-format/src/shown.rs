//! Characters that change what surrounds them when they are shown.

/// Returns true for characters that act on a terminal or a page instead of being shown. They are
/// control characters, and those that change the direction of the text around them, hide it, or
/// break its line.
///
/// Names of functions, files and threads come from the programs that are looked at, and may hold
/// any of them.
///
/// ```
/// use cairn_format::changes_its_surroundings;
///
/// let changing = ['\u{1b}', '\n', '\u{202e}', '\u{feff}', '\u{e0041}'];
/// assert!(changing.into_iter().all(changes_its_surroundings));
/// let plain = ['a', 'é', '名', '🦀', ' ', '\u{301}'];
/// assert!(!plain.into_iter().any(changes_its_surroundings));
/// ```
#[must_use]
pub const fn changes_its_surroundings(character: char) -> bool {
    matches!(
        character,
        '\0'..='\x1f'
            | '\x7f'..='\u{9f}'
            | '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    )
}
