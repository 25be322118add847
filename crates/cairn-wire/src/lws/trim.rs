//! Selects the frames of an unwinder that go into a backtrace.

use cairn_format::AbsoluteAddress;

/// How many innermost frames libwebsockets leaves out: its own.
pub const DEFAULT_PRE: usize = 2;
/// How many outermost frames libwebsockets leaves out: the loader's.
pub const DEFAULT_POST: usize = 1;
/// Maximum frames of a libwebsockets capture; 32. One more than
/// [`MAX_DEPTH`](crate::lws::MAX_DEPTH): with `post` 0 a capture can be too deep to encode.
pub const CAPTURE_LIMIT: usize = 32;

/// Returns the frames of a walk that libwebsockets stores. They exclude the first `pre`, zero
/// addresses, those after [`CAPTURE_LIMIT`], and then the last `post`, if there are more than
/// `post`.
///
/// In a stack deeper than the limit the `post` frames dropped are thus not the outermost ones: the
/// 32nd goes, not `_start`.
///
/// ```
/// use cairn_format::AbsoluteAddress;
/// use cairn_wire::lws;
/// let walked = [0x10, 0x20, 0x30, 0, 0x40, 0x50].map(AbsoluteAddress::new);
/// let retained = lws::trim(walked.into_iter(), lws::DEFAULT_PRE, lws::DEFAULT_POST);
/// assert!(retained.eq([0x30, 0x40].map(AbsoluteAddress::new)));
/// ```
pub fn trim<I>(walked: I, pre: usize, post: usize) -> impl Iterator<Item = AbsoluteAddress> + Clone
where
    I: Iterator<Item = AbsoluteAddress> + Clone,
{
    let captured = walked.skip(pre).filter(|address| address.value() != 0).take(CAPTURE_LIMIT);
    let count = captured.clone().count();
    captured.take(if count > post { count - post } else { count })
}
