//! Work that may block.

use std::path::PathBuf;

use crate::RuntimeError;

/// Runs file and process work where it may block. It goes on to its end even when the caller is
/// dropped.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RuntimeError> + Send + 'static,
) -> Result<T, RuntimeError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(RuntimeError::Io {
                what: "work, because the program is ending, in",
                path: PathBuf::from("."),
                source: std::io::Error::other(error),
            }),
        },
    }
}
