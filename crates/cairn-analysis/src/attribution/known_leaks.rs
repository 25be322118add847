//! Leaks that every program has, by its libraries: suppressed unless the user wants to see them.
