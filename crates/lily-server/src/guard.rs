//! Who may talk to the server: checks of header size, `Host`, `Origin` and the API key, before any handler.
//!
//! A web page can make a browser send requests to a server on the loopback interface, either directly (then the
//! `Origin` is the page's) or after rebinding its own name to 127.0.0.1 (then the `Host` is the page's). Neither is
//! let through: a `Host` must be an IP address, `localhost`, or a name the operator allowed, and an `Origin`, when
//! there is one, must be loopback or the server itself.

use std::net::{IpAddr, Ipv6Addr};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, StatusCode, Uri, Version, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};
use subtle::ConstantTimeEq;

use crate::{app::App, error::ApiError, serve::HEADER_BYTES};

/// The middleware.
pub(crate) async fn check(State(app): State<App>, request: Request, next: Next) -> Response {
    let refused = match allowed(&app, &request) {
        Ok(()) => return next.run(request).await,
        Err(error) => error,
    };
    // Each API's clients read their own form of errors.
    if request.uri().path().starts_with("/v1/messages") {
        refused.into_anthropic()
    } else {
        refused.into_response()
    }
}

fn allowed(app: &App, request: &Request) -> Result<(), ApiError> {
    check_size(request.headers())?;
    let host = check_host(request.version(), request.uri(), request.headers(), &app.config.allowed_hosts)?;
    check_origin(request.headers(), host.as_ref())?;
    // Health tells nothing that a refused connection would not.
    if request.uri().path() != "/health" {
        check_key(request.headers(), app.config.api_key.as_deref())?;
    }
    Ok(())
}

/// The connection's own limit is the size of its buffer, which may have grown beyond this.
fn check_size(headers: &HeaderMap) -> Result<(), ApiError> {
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if bytes <= HEADER_BYTES {
        return Ok(());
    }
    Err(ApiError::new(
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        "invalid_request_error",
        format!("the headers have {bytes} bytes; at most {HEADER_BYTES} are allowed"),
    ))
}

fn forbidden(message: String, code: &'static str) -> ApiError {
    ApiError { code: Some(code), ..ApiError::new(StatusCode::FORBIDDEN, "permission_error", message) }
}

/// The host a request is for; `None` for HTTP/1.0 without one, which no browser sends.
fn check_host(
    version: Version,
    uri: &Uri,
    headers: &HeaderMap,
    allowed: &[String],
) -> Result<Option<Authority>, ApiError> {
    let bad = |what: String| ApiError::body(format!("{what}; expected one Host header such as localhost"));
    let mut found = headers.get_all(header::HOST).iter();
    let host = match (found.next(), found.next()) {
        (Some(_), Some(_)) => return Err(bad("two Host headers".to_string())),
        (Some(value), None) => Some(value.as_bytes()),
        (None, _) if version == Version::HTTP_10 => None,
        (None, _) => return Err(bad("no Host header".to_string())),
    };
    let host = host
        .map(|bytes| {
            Authority::try_from(bytes)
                .map_err(|_| bad(format!("Host is {:?}", String::from_utf8_lossy(bytes))))
        })
        .transpose()?;
    for authority in host.iter().chain(uri.authority()) {
        let name = authority.host();
        if !(is_localhost(name) || ip(name).is_some() || allowed.iter().any(|a| a.eq_ignore_ascii_case(name)))
        {
            return Err(forbidden(
                format!(
                    "the host {name:?} is not served here; use localhost or an IP address, or start the server \
                     with --allow-host {name}"
                ),
                "host_not_allowed",
            ));
        }
    }
    Ok(host)
}

fn check_origin(headers: &HeaderMap, host: Option<&Authority>) -> Result<(), ApiError> {
    for value in headers.get_all(header::ORIGIN) {
        let text = value.to_str().unwrap_or_default();
        let origin: Option<Authority> = text.parse::<Uri>().ok().and_then(|u| u.into_parts().authority);
        let allowed = origin.is_some_and(|origin| {
            is_localhost(origin.host())
                || ip(origin.host()).is_some_and(|ip| ip.is_loopback())
                || host.is_some_and(|host| *host == origin)
        });
        if !allowed {
            return Err(forbidden(
                format!("requests from pages of {text:?} are not allowed"),
                "origin_not_allowed",
            ));
        }
    }
    Ok(())
}

fn is_localhost(name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

/// The address a host names literally; IPv6 is in brackets there.
fn ip(name: &str) -> Option<IpAddr> {
    match name.strip_prefix('[').and_then(|n| n.strip_suffix(']')) {
        Some(v6) => v6.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        None => name.parse().ok(),
    }
}

fn check_key(headers: &HeaderMap, key: Option<&str>) -> Result<(), ApiError> {
    let Some(key) = key else { return Ok(()) };
    let bearer = headers.get(header::AUTHORIZATION).and_then(|v| {
        let (scheme, token) = v.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    let given = bearer.or_else(|| headers.get("x-api-key").and_then(|v| v.to_str().ok()));
    let message = match given {
        // The time this takes tells nothing about the key but its length.
        Some(given) if bool::from(given.as_bytes().ct_eq(key.as_bytes())) => return Ok(()),
        Some(_) => "the API key is wrong",
        None => "an API key is needed; send it as `Authorization: Bearer KEY`",
    };
    Err(ApiError {
        code: Some("invalid_api_key"),
        ..ApiError::new(StatusCode::UNAUTHORIZED, "invalid_request_error", message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(value: &str, allowed: &[&str]) -> Result<(), u16> {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, value.parse().unwrap());
        let allowed: Vec<String> = allowed.iter().map(|a| (*a).to_string()).collect();
        check_host(Version::HTTP_11, &Uri::from_static("/"), &headers, &allowed)
            .map(|_| ())
            .map_err(|e| e.status.as_u16())
    }

    fn origin(value: &str, host: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::ORIGIN, value.parse().unwrap());
        check_origin(&headers, Some(&host.parse().unwrap())).is_ok()
    }

    #[test]
    fn hosts_that_cannot_be_rebound_are_served() {
        for good in
            ["localhost", "LocalHost:8080", "127.0.0.1:1", "[::1]:8080", "192.168.1.7", "a.localhost:3"]
        {
            assert_eq!(host(good, &[]), Ok(()), "{good}");
        }
        for bad in ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example"] {
            assert_eq!(host(bad, &[]), Err(403), "{bad}");
        }
        assert_eq!(host("my.box:80", &["MY.box"]), Ok(()));
        assert_eq!(host("a b", &[]), Err(400));
        let none = check_host(Version::HTTP_11, &Uri::from_static("/"), &HeaderMap::new(), &[]);
        assert_eq!(none.unwrap_err().status, StatusCode::BAD_REQUEST);
    }

    #[test]
    fn origins_of_other_pages_are_refused() {
        assert!(origin("http://localhost:3000", "127.0.0.1:8080"));
        assert!(origin("http://127.0.0.1:3000", "localhost:8080"));
        assert!(origin("http://[::1]:3000", "localhost:8080"));
        assert!(origin("http://10.0.0.5:8080", "10.0.0.5:8080"));
        for bad in ["http://evil.example", "https://localhost.evil.example", "null", "http://10.0.0.6:8080"] {
            assert!(!origin(bad, "10.0.0.5:8080"), "{bad}");
        }
    }

    #[test]
    fn keys_are_compared_whole() {
        let with = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            check_key(&headers, Some("secret")).is_ok()
        };
        assert!(with("authorization", "Bearer secret"));
        assert!(with("authorization", "bearer  secret"));
        assert!(with("x-api-key", "secret"));
        assert!(!with("authorization", "Bearer secre"));
        assert!(!with("authorization", "Bearer secrett"));
        assert!(!with("authorization", "Basic secret"));
        assert!(!with("x-api-key", ""));
        assert!(check_key(&HeaderMap::new(), Some("secret")).is_err());
        assert!(check_key(&HeaderMap::new(), None).is_ok());
    }
}
