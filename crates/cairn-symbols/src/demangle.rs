//! From the linker's name of a function to the readable one.

use crate::source::Language;

/// The readable form of a mangled name; `None` when it is not mangled, or not in a way that is known here.
pub(crate) fn demangle(name: &str, language: Language) -> Option<String> {
    let language = match language {
        Language::Rust => Some(gimli::DW_LANG_Rust),
        Language::Cpp => Some(gimli::DW_LANG_C_plus_plus),
        Language::Plain | Language::Swift => return None,
        Language::Unknown => None,
    };
    match addr2line::demangle_auto(name.into(), language) {
        std::borrow::Cow::Owned(readable) => Some(readable),
        std::borrow::Cow::Borrowed(_) => None,
    }
}
