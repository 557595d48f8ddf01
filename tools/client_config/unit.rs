//! Units for systemd: the service, and a socket by which it starts when somebody asks.

use super::server::Server;
use super::{Format, Piece};

/// The service, and the socket.
pub(super) fn pieces(server: &Server) -> Vec<Piece> {
    let program = std::env::current_exe().unwrap_or_else(|_| "/usr/bin/flint-rt".into());
    let program = quoted(&program.display().to_string());
    let address = server.bound();
    let (host, port) = (address.ip(), address.port());
    let service = format!(
        "[Unit]
Description=flint-rt, a server of a language model
After=network.target

[Service]
Type=notify
# Flags by variable: FLINT_RT_MODEL, FLINT_RT_API_KEY, FLINT_RT_CTX_SIZE, ...
EnvironmentFile=-/etc/flint-rt.env
ExecStart={program} serve --host {host} --port {port} --idle-release 900
Restart=on-failure
RestartSec=5
# It says itself that loading goes on, and that it lives.
TimeoutStartSec=60
TimeoutStopSec=30
WatchdogSec=60
# Buffers that the drive reads into are locked.
LimitMEMLOCK=infinity
LimitNOFILE=8192
DynamicUser=yes
StateDirectory=flint-rt
CacheDirectory=flint-rt
Environment=XDG_DATA_HOME=/var/lib XDG_STATE_HOME=/var/lib XDG_CACHE_HOME=/var/cache
# The device's files.
SupplementaryGroups=render video
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
NoNewPrivileges=yes

[Install]
WantedBy=multi-user.target
"
    );
    let socket = format!(
        "[Unit]
Description=Socket of flint-rt

[Socket]
ListenStream={address}

[Install]
WantedBy=sockets.target
"
    );
    vec![
        Piece {
            place: "/etc/systemd/system/flint-rt.service".to_owned(),
            format: Format::Unit,
            text: service,
        },
        Piece {
            place: "/etc/systemd/system/flint-rt.socket (if it is to start when somebody asks)".to_owned(),
            format: Format::Unit,
            text: socket,
        },
    ]
}

/// A word of a command in a unit: per cent signs and dollars mean something there.
fn quoted(word: &str) -> String {
    let plain = word.replace('%', "%%").replace('$', "$$");
    match plain.contains(char::is_whitespace) || plain.contains(['"', '\'', '\\']) {
        true => format!("\"{}\"", plain.replace('\\', "\\\\").replace('"', "\\\"")),
        false => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_unit_keep_their_text() {
        assert_eq!(quoted("/usr/bin/flint-rt"), "/usr/bin/flint-rt");
        assert_eq!(quoted("/a b/50%$x"), "\"/a b/50%%$$x\"");
    }
}
