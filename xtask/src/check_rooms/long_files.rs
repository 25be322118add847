//! Finds source files that are too long and give no reason for it.

use crate::allowances::Breach;

/// Maximum length of a source file, in lines; 800, because a longer one holds more than one idea.
const LINES: usize = 800;

/// Maximum distance of the reason from the start, in lines; 60, because the head of a file ends
/// there.
const HEAD_LINES: usize = 60;

/// Start of the sentence that gives the reason, in a comment at the head of the file.
const REASON: &str = "Long because ";

/// Name of the rule, as in the list of allowances.
pub(crate) const RULE: &str = "long";

/// Endings of the files that hold code.
const CODE: &[&str] = &["rs", "c", "h", "cpp", "py", "js", "mjs"];

/// Returns a breach if the file is too long and gives no reason.
pub(crate) fn breach(path: &str, text: &str) -> Option<Breach> {
    let is_code = path.rsplit_once('.').is_some_and(|(_, ending)| CODE.contains(&ending));
    let lines = text.lines().count();
    if !is_code || lines <= LINES || text.lines().take(HEAD_LINES).any(gives_reason) {
        return None;
    }
    let message = format!(
        "{lines} lines, and at most {LINES} without a reason; split the file, or add a line `{REASON}…` to the \
         comment at its head"
    );
    Some(Breach { rule: RULE, path: path.to_owned(), line: 1, message })
}

fn gives_reason(line: &str) -> bool {
    let comment = line.trim_start().trim_start_matches(['/', '!', '*', '#']).trim_start();
    comment.strip_prefix(REASON).is_some_and(|reason| !reason.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_breach(path: &str, head: &str, lines: usize) -> bool {
        breach(path, &format!("{head}\n{}", "x\n".repeat(lines - 1))).is_some()
    }

    #[test]
    fn long_files_need_a_reason_from_801_lines_on() {
        assert!(!has_breach("a.rs", "//! Docs.", LINES));
        assert!(has_breach("a.rs", "//! Docs.", LINES + 1));
        assert!(!has_breach("a.md", "Docs.", LINES + 1));
    }

    #[test]
    fn long_file_reasons_are_comments_with_content() {
        for (path, head) in [
            ("a.rs", "//! Docs.\n//!\n//! Long because one table lists all codes."),
            ("a.c", "/* Docs.\n * Long because one table lists all codes. */"),
            ("a.py", "# Long because one table lists all codes."),
        ] {
            assert!(!has_breach(path, head, 900), "{head}");
        }
        for head in ["//! Long because ", "//! Longer because of it.", "let a = \"Long because\";"] {
            assert!(has_breach("a.rs", head, 900), "{head}");
        }
    }

    #[test]
    fn long_file_reasons_far_from_the_head_do_not_count() {
        let head = format!("{}//! Long because of it.", "\n".repeat(HEAD_LINES));
        assert!(has_breach("a.rs", &head, 900));
    }
}
