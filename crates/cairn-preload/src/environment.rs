//! The environment and our two variables in it. The program must see the environment that it would
//! have without this library, so the variables are removed before any code of the program runs, and
//! added again for `exec`.

use core::ffi::{CStr, c_char, c_int};
use core::{ptr, slice};

use crate::system;

/// The variable with our options.
const OPTIONS: &[u8] = b"CAIRN_HEAP=";
/// The variable that makes the loader load this library.
const PRELOAD: &[u8] = b"LD_PRELOAD=";

unsafe extern "C" {
    /// Address of the number of arguments on the first stack. The arguments follow, a null pointer,
    /// the environment, and another null pointer.
    #[link_name = "__libc_stack_end"]
    static STACK_END: *mut usize;
    #[link_name = "environ"]
    static mut ENVIRON: *mut *mut c_char;
}

/// The arrays that the kernel made for the program.
pub(crate) struct ProcessArguments {
    arguments: *mut *mut c_char,
    pub(crate) environment: *mut *mut c_char,
}

impl ProcessArguments {
    /// Finds the arrays on the first stack, which is the only way before the C library's own start.
    /// `None` when the words differ from what the kernel writes.
    ///
    /// # Safety
    ///
    /// The program has not begun, or has not written to these arrays.
    pub(crate) unsafe fn find() -> Option<Self> {
        // SAFETY: the loader's variable, and words that the kernel wrote.
        unsafe {
            let count = STACK_END.as_ref()?;
            let arguments = STACK_END.add(1).cast::<*mut c_char>();
            // The kernel allows no more than a few millions of them.
            if *count > 1 << 23 || !(*arguments.add(*count)).is_null() {
                return None;
            }
            Some(Self { arguments, environment: arguments.add(count + 1) })
        }
    }

    /// Returns the name that the program was called by, without directories.
    pub(crate) fn program_name(&self) -> &'static [u8] {
        // SAFETY: an array of texts that ends with a null pointer.
        let name =
            unsafe { (*self.arguments).as_ref().map_or(&b""[..], |name| CStr::from_ptr(name).to_bytes()) };
        let base = name.rsplit(|byte| *byte == b'/').next().unwrap_or(name);
        if base.is_empty() { b"program" } else { base }
    }
}

/// Returns the program's present environment.
pub(crate) fn current() -> *mut *mut c_char {
    // SAFETY: a word that is read as the C library itself reads it.
    unsafe { ENVIRON }
}

/// Yields the texts of an environment.
///
/// # Safety
///
/// `environment` is null, or an array of texts that ends with a null pointer and stays.
unsafe fn texts<'a>(environment: *const *mut c_char) -> impl Iterator<Item = &'a [u8]> {
    let mut entry = environment;
    core::iter::from_fn(move || {
        // SAFETY: the caller promises that `environment` is null, or an array of texts that ends
        // with a null pointer and stays.
        unsafe {
            let text = (*entry.as_ref()?).as_ref()?;
            entry = entry.add(1);
            Some(CStr::from_ptr(text).to_bytes())
        }
    })
}

/// Returns the value of our own variable.
///
/// # Safety
///
/// As for [`texts`].
pub(crate) unsafe fn options<'a>(environment: *const *mut c_char) -> Option<&'a [u8]> {
    // SAFETY: the caller promises an array of texts that ends with a null pointer.
    unsafe { texts(environment) }.find_map(|text| text.strip_prefix(OPTIONS))
}

/// Returns the directories in which programs are searched.
///
/// # Safety
///
/// As for [`texts`].
pub(crate) unsafe fn search_path<'a>(environment: *const *mut c_char) -> Option<&'a [u8]> {
    // SAFETY: the caller promises an array of texts that ends with a null pointer.
    unsafe { texts(environment) }.find_map(|text| text.strip_prefix(b"PATH="))
}

/// Returns the value of another variable; `name` ends with an equals sign.
///
/// # Safety
///
/// As for [`texts`].
#[cfg(any(feature = "annotate", target_arch = "x86_64"))]
pub(crate) unsafe fn value<'a>(environment: *const *mut c_char, name: &[u8]) -> Option<&'a [u8]> {
    // SAFETY: the caller promises an array of texts that ends with a null pointer.
    unsafe { texts(environment) }.find_map(|text| text.strip_prefix(name))
}

/// Removes our variables from `environment`, in place. Other libraries in `LD_PRELOAD` stay.
///
/// # Safety
///
/// - As for [`texts`], and its words and texts may be written.
/// - Nobody else uses it meanwhile.
pub(crate) unsafe fn remove_own(environment: *mut *mut c_char, own_path: &[u8]) {
    // SAFETY: the caller promises an array of texts that ends with null, is writable, and has no
    // other user; the place to write to is never ahead of the one that is read.
    unsafe {
        let (mut from, mut to) = (environment, environment);
        while let Some(text) = (*from).as_mut() {
            let length = CStr::from_ptr(text).to_bytes().len();
            let bytes = slice::from_raw_parts_mut(ptr::from_mut(text).cast::<u8>(), length + 1);
            if !bytes.starts_with(OPTIONS) && keeps(bytes, own_path) {
                *to = text;
                to = to.add(1);
            }
            from = from.add(1);
        }
        while to < from {
            *to = ptr::null_mut();
            to = to.add(1);
        }
    }
}

/// Removes `own_path` from the list when `variable`, including its NUL, is `LD_PRELOAD`. Returns
/// false when the variable has to be removed.
fn keeps(variable: &mut [u8], own_path: &[u8]) -> bool {
    if !variable.starts_with(PRELOAD) {
        return true;
    }
    let list = &mut variable[PRELOAD.len()..];
    let is_separator = |byte: &u8| matches!(byte, b':' | b' ' | 0);
    let mut start = 0_usize;
    while start < list.len() {
        let length = list[start..].iter().position(is_separator).unwrap_or(list.len() - start);
        if list.get(start..start + length).is_some_and(|item| is_own(item, own_path)) {
            // The separator behind it goes too; for the last one, the one in front.
            let is_last = start + length + 1 >= list.len();
            let from = if is_last { start.saturating_sub(1) } else { start };
            let rest = if is_last { start + length } else { start + length + 1 };
            list.copy_within(rest.., from);
            let end = list.len() - (rest - from);
            list[end..].fill(0);
            return list.first() != Some(&0);
        }
        start += length + 1;
    }
    true
}

/// Returns true for a separator of libraries.
const fn is_separator(byte: &u8) -> bool {
    matches!(*byte, b':' | b' ')
}

/// Returns true for the loader's name of this library, and for its file name, as in a relative
/// path.
fn is_own(item: &[u8], own_path: &[u8]) -> bool {
    let base = |path: &'_ [u8]| path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    !item.is_empty() && (item == own_path || item[base(item)..] == own_path[base(own_path)..])
}

/// The variables of this library for a new program.
#[derive(Clone, Copy)]
pub(crate) struct OwnVariables {
    /// False to remove them, for a program that must not get them.
    pub(crate) is_wanted: bool,
    /// The whole text of `CAIRN_HEAP=...`; null when there was none.
    pub(crate) options: *const c_char,
    /// The path of this library.
    pub(crate) library: &'static [u8],
}

/// Maximum entries that are built on the stack; more are built in a mapping.
const ENTRIES_ON_STACK: usize = 128;
/// Maximum bytes of `LD_PRELOAD=...` that are built on the stack.
const PRELOAD_ON_STACK: usize = 512;

impl OwnVariables {
    /// Calls `f` with a copy of `environment` with our variables, or without them.
    ///
    /// # Safety
    ///
    /// As for [`texts`].
    pub(crate) unsafe fn with(
        self,
        environment: *const *mut c_char,
        f: &mut dyn FnMut(*const *const c_char) -> c_int,
    ) -> c_int {
        // SAFETY: the caller promises an array of texts that ends with a null pointer.
        let count = unsafe { texts(environment) }.count() + 3;
        // SAFETY: the caller promises an array of texts that ends with a null pointer.
        let present =
            unsafe { texts(environment) }.find_map(|text| text.strip_prefix(PRELOAD)).unwrap_or(b"");
        // SAFETY: the caller promises an array of texts that ends with a null pointer.
        let has_options = unsafe { options(environment) }.is_some();
        if self.is_in(present) == self.is_wanted && (self.is_wanted || !has_options) {
            return f(environment.cast());
        }
        let text_bytes = PRELOAD.len() + self.library.len() + 1 + present.len() + 1;
        let mut words = [ptr::null(); ENTRIES_ON_STACK];
        let mut text = [0; PRELOAD_ON_STACK];
        if count <= words.len() && text_bytes <= text.len() {
            // SAFETY: the caller promises an array of texts that ends with a null pointer.
            unsafe { self.fill(environment, present, &mut words, &mut text) };
            return f(words.as_ptr());
        }
        let bytes = count * size_of::<usize>() + text_bytes;
        // Without memory the new program runs unrecorded.
        let Some(memory) = system::map(bytes) else { return f(environment.cast()) };
        // SAFETY: the mapping has both parts, zeroed and aligned.
        let result = unsafe {
            let words = slice::from_raw_parts_mut(memory.cast::<*const c_char>(), count);
            let text = slice::from_raw_parts_mut(memory.add(count * size_of::<usize>()), text_bytes);
            self.fill(environment, present, words, text);
            f(words.as_ptr())
        };
        let errno = system::errno();
        // SAFETY: nobody uses it: the function returned.
        unsafe { system::unmap(memory, bytes) };
        system::set_errno(errno);
        result
    }

    fn is_in(&self, list: &[u8]) -> bool {
        list.split(is_separator).any(|item| item == self.library)
    }

    /// # Safety
    ///
    /// As for [`texts`]; `words` has three more places than there are texts, and `text` room for
    /// the list.
    unsafe fn fill(
        self,
        environment: *const *mut c_char,
        present: &[u8],
        words: &mut [*const c_char],
        text: &mut [u8],
    ) {
        let mut at = 0;
        let mut push = |bytes: &[u8]| {
            if let Some(place) = text.get_mut(at..at + bytes.len()) {
                place.copy_from_slice(bytes);
                at += bytes.len();
            }
        };
        push(PRELOAD);
        let mut has_list = self.is_wanted;
        if self.is_wanted {
            push(self.library);
            if !present.is_empty() {
                push(b":");
                push(present);
            }
        } else {
            for item in present.split(is_separator).filter(|item| !item.is_empty() && *item != self.library) {
                if has_list {
                    push(b":");
                }
                push(item);
                has_list = true;
            }
        }
        push(b"\0");
        // SAFETY: the caller promises an array of texts that ends with null.
        let others = unsafe { texts(environment) }
            .filter(|text| !text.starts_with(PRELOAD) && !text.starts_with(OPTIONS))
            .map(|text| text.as_ptr().cast::<c_char>());
        let list = has_list.then_some(text.as_ptr().cast());
        let own = list.into_iter().chain(self.is_wanted.then_some(self.options));
        let mut places = words.iter_mut();
        for entry in others.chain(own) {
            if let Some(place) = places.next() {
                *place = entry;
            }
        }
        if let Some(place) = places.next() {
            *place = ptr::null();
        }
    }
}
