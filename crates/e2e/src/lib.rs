//! End-to-end tests and measurements, on the real program.
//!
//! The tests are in `tests/`, one file per subject; the prefix of a file says which real parts it
//! needs (`embedded_`: nothing but the program itself and, where said, a stock kubectl).
//! The measuring program is `src/bin/belay-bench`.
