//! Names of functions without what differs between their instances.

/// A name without template arguments, parameters and return type: `std::vector::push_back`.
///
/// ```
/// use cairn_analysis::attribution::plain_name;
/// assert_eq!(plain_name("int* std::find<int*, char (*)(int)>(int*, int) const"), "std::find");
/// assert_eq!(plain_name("operator new[](unsigned long)"), "operator new[]");
/// assert_eq!(plain_name("(anonymous namespace)::load(char const*)"), "(anonymous namespace)::load");
/// ```
#[must_use]
pub fn plain_name(name: &str) -> String {
    let mut plain = String::with_capacity(name.len());
    let mut depth = 0_u32;
    let mut rest = name;
    while let Some(c) = rest.chars().next() {
        let is_start_of_part = plain.is_empty() || plain.ends_with([':', ' ', '*', '&']);
        if depth == 0 && is_start_of_part && rest.starts_with("operator") {
            let taken = operator_length(rest);
            plain.push_str(&rest[..taken]);
            rest = &rest[taken..];
            continue;
        }
        if depth == 0 && is_start_of_part && rest.starts_with(ANONYMOUS) {
            plain.push_str(ANONYMOUS);
            rest = &rest[ANONYMOUS.len()..];
            continue;
        }
        rest = &rest[c.len_utf8()..];
        match c {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            '(' if depth == 0 => break,
            _ if depth == 0 => plain.push(c),
            _ => {}
        }
    }
    plain.truncate(plain.trim_end().len());
    // Text in front of the last space is a return type, except in operators, which have a space
    // themselves.
    let start = match plain.find("operator") {
        Some(operator) => plain[..operator].rfind(' '),
        None => plain.replace(ANONYMOUS, ANONYMOUS_WITHOUT_SPACE).rfind(' '),
    };
    match start {
        Some(space) => plain.split_off(space + 1).trim_start_matches(['*', '&']).to_owned(),
        None => plain,
    }
}

const ANONYMOUS: &str = "(anonymous namespace)";
const ANONYMOUS_WITHOUT_SPACE: &str = "(anonymous_namespace)";

/// The length of `operator` and what it is the operator of, at the start of `name`.
fn operator_length(name: &str) -> usize {
    const WORD: usize = "operator".len();
    let after = &name[WORD..];
    for words in
        [" new[]", " delete[]", " new", " delete", "()", "<=>", "<<", ">>", "->", "<=", ">=", "<", ">"]
    {
        if after.starts_with(words) {
            return WORD + words.len();
        }
    }
    WORD
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_names_survive_malformed_names() {
        let cases = [
            ("bool operator< <int>(A<int> const&, A<int> const&)", "operator<"),
            ("Foo::operator()(int) const", "Foo::operator()"),
            ("std::ostream& operator<<(std::ostream&, int)", "operator<<"),
            ("a<<<<<<b", "a"),
            (">>>", ""),
            ("operator", "operator"),
            ("ünï<x>::çödé(y)", "ünï::çödé"),
        ];
        for (name, plain) in cases {
            assert_eq!(plain_name(name), plain, "{name}");
        }
    }
}
