//! Judges the judges: every field of every vector is changed, one at a time, and the check must
//! notice.
//!
//! A field whose change goes unnoticed is either not asserted, which is a fault of the check, or is
//! in its list of fields that are not judged, with the number of changes and the reason.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use serde_json::Value;

/// A field that is not judged. It has its group and path (`*` for any place of a list, `[]` for its
/// length), the number of its changes that go unnoticed, and the reason.
pub type Unjudged = (&'static str, usize, &'static str);

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Maximum length of lists that are changed at every entry. Longer ones are changed at both ends
/// only: the middle of a long stack resembles its ends.
const LONG_LIST: usize = 24;

/// Checks all cases, and that every change of one is noticed but for those of the `unjudged`
/// fields.
pub fn assert_changes_are_noticed(cases: &[Value], check: impl Fn(&Value), unjudged: &[Unjudged]) {
    let mut changes = 0;
    let mut unnoticed: BTreeMap<String, (usize, String)> = BTreeMap::new();
    for case in cases {
        check(case);
        let group = case["group"].as_str().unwrap_or("-");
        let mut places = Vec::new();
        find_places(case, &mut Vec::new(), &mut places);
        for place in places {
            for changed in changes_of(at(case, &place)) {
                let mut case = case.clone();
                *at_mut(&mut case, &place) = changed.clone();
                changes += 1;
                if quietly(|| check(&case)) {
                    let is_length = changed.is_array();
                    let key = format!("{group}{}{}", pattern(&place), if is_length { "[]" } else { "" });
                    let entry = unnoticed.entry(key).or_insert_with(|| (0, case["id"].to_string()));
                    entry.0 += 1;
                }
            }
        }
    }
    assert!(changes > cases.len(), "nothing was changed");
    let found: Vec<String> =
        unnoticed.iter().map(|(key, (count, case))| format!("{key}: {count} (first in {case})")).collect();
    let listed = |key: &str| unjudged.iter().find(|(listed, ..)| *listed == key).map(|(_, count, _)| *count);
    let differs = unnoticed.iter().any(|(key, (count, _))| listed(key) != Some(*count))
        || unjudged.iter().any(|(key, ..)| !unnoticed.contains_key(*key));
    assert!(!differs, "of {changes} changes, these go unnoticed: {found:#?}\nlisted: {unjudged:#?}");
}

/// Runs a check that may panic, without a message; true when it does not.
fn quietly(check: impl FnOnce()) -> bool {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !IS_QUIET.get() {
                usual(info);
            }
        }));
    });
    IS_QUIET.set(true);
    let passed = catch_unwind(AssertUnwindSafe(check)).is_ok();
    IS_QUIET.set(false);
    passed
}

#[derive(Clone, Debug)]
enum PathStep {
    Key(String),
    Index(usize),
}

/// All leaves and lists of a case. Its name and its group are words about it, not parts of it.
fn find_places(value: &Value, path: &mut Vec<PathStep>, places: &mut Vec<Vec<PathStep>>) {
    match value {
        Value::Object(fields) => {
            for (key, field) in fields {
                if path.is_empty() && ["id", "note", "group"].contains(&key.as_str()) {
                    continue;
                }
                path.push(PathStep::Key(key.clone()));
                find_places(field, path, places);
                path.pop();
            }
        }
        Value::Array(list) => {
            places.push(path.clone());
            for (index, entry) in list.iter().enumerate() {
                if list.len() > LONG_LIST && (LONG_LIST / 2..list.len() - LONG_LIST / 2).contains(&index) {
                    continue;
                }
                path.push(PathStep::Index(index));
                find_places(entry, path, places);
                path.pop();
            }
        }
        _ => places.push(path.clone()),
    }
}

fn at<'a>(value: &'a Value, path: &[PathStep]) -> &'a Value {
    path.iter().fold(value, |value, step| match step {
        PathStep::Key(key) => &value[key.as_str()],
        PathStep::Index(index) => &value[index],
    })
}

fn at_mut<'a>(value: &'a mut Value, path: &[PathStep]) -> &'a mut Value {
    path.iter().fold(value, |value, step| match step {
        PathStep::Key(key) => &mut value[key.as_str()],
        PathStep::Index(index) => &mut value[*index],
    })
}

fn pattern(path: &[PathStep]) -> String {
    path.iter()
        .map(|step| match step {
            PathStep::Key(key) => format!("/{key}"),
            PathStep::Index(_) => "/*".to_owned(),
        })
        .collect()
}

/// Returns a value that means something else.
fn changes_of(value: &Value) -> Vec<Value> {
    match value {
        Value::Null => vec!["00".into()],
        Value::Bool(flag) => vec![(!flag).into()],
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => vec![number.checked_add(1).unwrap_or(0).into()],
            (_, Some(number)) => vec![(number + 1).into()],
            _ => panic!("not a whole number: {number}"),
        },
        Value::String(text) => changed_texts(text).into_iter().map(Value::from).collect(),
        Value::Array(list) => match list.split_last() {
            Some((_, rest)) => vec![rest.into()],
            None => vec![vec![Value::Null].into()],
        },
        Value::Object(_) => Vec::new(),
    }
}

/// Returns one character changed: the first, one in the middle and the last; of a number the last.
fn changed_texts(text: &str) -> Vec<String> {
    let characters: Vec<char> = text.chars().collect();
    let Some(last) = characters.len().checked_sub(1) else { return vec!["00".into()] };
    let mut places = if text.starts_with("0x") { vec![last] } else { vec![0, last / 2, last] };
    places.dedup();
    let other = |character: char| match character {
        '0'..='9' | 'a'..='f' => char::from_digit(character.to_digit(16).unwrap_or(0) ^ 1, 16).unwrap_or('0'),
        'x' => 'y',
        _ => 'x',
    };
    let changed = |place: usize| {
        let mut characters = characters.clone();
        characters[place] = other(characters[place]);
        characters.into_iter().collect()
    };
    places.into_iter().map(changed).collect()
}
