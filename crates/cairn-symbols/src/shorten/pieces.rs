//! Names as trees: their texts, and the lists between their brackets.

/// Maximum nesting of brackets; 128, more than any name of a program that people read.
const MAX_NESTING: usize = 128;

/// A piece of a name.
#[derive(Debug)]
pub(super) enum NamePiece<'n> {
    Text(&'n str),
    /// The text between brackets, split at its commas.
    Group(Bracket, Vec<Vec<NamePiece<'n>>>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bracket {
    Angle,
    Round,
    Square,
    Curly,
}

impl Bracket {
    const ALL: [Self; 4] = [Self::Angle, Self::Round, Self::Square, Self::Curly];

    pub(super) const fn ends(self) -> (char, char) {
        match self {
            Self::Angle => ('<', '>'),
            Self::Round => ('(', ')'),
            Self::Square => ('[', ']'),
            Self::Curly => ('{', '}'),
        }
    }
}

/// Splits a name at its brackets; `None` if they do not match.
pub(super) fn parse(name: &str) -> Option<Vec<NamePiece<'_>>> {
    let mut parser = Parser { name, at: 0 };
    let mut lists = parser.lists(None, 0)?;
    (parser.at == name.len()).then(|| lists.pop()).flatten()
}

struct Parser<'n> {
    name: &'n str,
    at: usize,
}

impl<'n> Parser<'n> {
    /// Reads up to the closing bracket, or to the end of the name.
    fn lists(&mut self, inside: Option<Bracket>, depth: usize) -> Option<Vec<Vec<NamePiece<'n>>>> {
        if depth > MAX_NESTING {
            return None;
        }
        let mut lists = vec![Vec::new()];
        let mut text = self.at;
        loop {
            let rest = &self.name[self.at..];
            let Some(c) = rest.chars().next() else {
                self.text(&mut lists, text);
                return inside.is_none().then_some(lists);
            };
            if let Some(length) = operator_length(&self.name[..self.at], rest) {
                self.at += length;
                continue;
            }
            if inside.is_some_and(|bracket| bracket.ends().1 == c) {
                self.text(&mut lists, text);
                self.at += c.len_utf8();
                return Some(lists);
            }
            if let Some(bracket) = Bracket::ALL.into_iter().find(|bracket| bracket.ends().0 == c) {
                self.text(&mut lists, text);
                self.at += c.len_utf8();
                let inner = self.lists(Some(bracket), depth + 1)?;
                lists.last_mut()?.push(NamePiece::Group(bracket, inner));
                text = self.at;
                continue;
            }
            if Bracket::ALL.into_iter().any(|bracket| bracket.ends().1 == c) {
                return None;
            }
            if c == ',' && inside.is_some() {
                self.text(&mut lists, text);
                self.at += 1;
                lists.push(Vec::new());
                text = self.at;
                continue;
            }
            self.at += c.len_utf8();
        }
    }

    fn text(&self, lists: &mut [Vec<NamePiece<'n>>], from: usize) {
        if let (Some(list), Some(text)) = (lists.last_mut(), self.name.get(from..self.at))
            && !text.is_empty()
        {
            list.push(NamePiece::Text(text));
        }
    }
}

/// Brackets in operators: the longest come first.
const OPERATORS: &[&str] =
    &["<=>", "<<=", ">>=", "->*", "<<", ">>", "<=", ">=", "->", "()", "[]", "<", ">", ","];

/// The length of an operator that holds a bracket, or of an arrow, behind this text.
fn operator_length(before: &str, rest: &str) -> Option<usize> {
    if rest.starts_with("->") {
        return Some(2);
    }
    let word = before.strip_suffix("operator")?;
    let is_word = !word.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$');
    OPERATORS.iter().find(|operator| is_word && rest.starts_with(**operator)).map(|operator| operator.len())
}
