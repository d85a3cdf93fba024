//! Calls for commands with somebody at the other end.

use std::path::Path;

use super::super::protocol::containerd::services::tasks::v1::{
    CloseIoRequest, ExecProcessRequest, ResizePtyRequest,
};
use super::{CallError, Client, DEED, ExecName, PROCESS, within};
use crate::Size;

/// The named pipes of a session. Those that are not there are not connected.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ends<'a> {
    pub(crate) stdin: Option<&'a Path>,
    pub(crate) stdout: &'a Path,
    pub(crate) stderr: Option<&'a Path>,
    /// containerd makes a terminal, and copies between it and the pipes.
    pub(crate) terminal: bool,
}

impl Client {
    /// Makes a session's exec known; nothing runs yet.
    pub(crate) async fn exec_session(
        &self,
        name: &ExecName,
        process: Vec<u8>,
        ends: Ends<'_>,
    ) -> Result<(), CallError> {
        let text = |path: Option<&Path>| {
            path.map(|path| path.display().to_string())
                .unwrap_or_default()
        };
        let request = within(ExecProcessRequest {
            container_id: name.container.clone(),
            exec_id: name.exec.clone(),
            stdin: text(ends.stdin),
            stdout: text(Some(ends.stdout)),
            stderr: text(ends.stderr),
            terminal: ends.terminal,
            spec: Some(prost_types::Any {
                type_url: PROCESS.to_owned(),
                value: process,
            }),
        });
        self.call(DEED, self.tasks().exec(request)).await.map(drop)
    }

    pub(crate) async fn resize(&self, name: &ExecName, size: Size) -> Result<(), CallError> {
        let request = within(ResizePtyRequest {
            container_id: name.container.clone(),
            exec_id: name.exec.clone(),
            width: size.columns.into(),
            height: size.rows.into(),
        });
        let mut tasks = self.tasks();
        self.call(DEED, tasks.resize_pty(request)).await.map(drop)
    }

    /// Lets go of containerd's own end of the input, which it keeps open.
    pub(crate) async fn close_stdin(&self, name: &ExecName) -> Result<(), CallError> {
        let request = within(CloseIoRequest {
            container_id: name.container.clone(),
            exec_id: name.exec.clone(),
            stdin: true,
        });
        let mut tasks = self.tasks();
        self.call(DEED, tasks.close_io(request)).await.map(drop)
    }
}
