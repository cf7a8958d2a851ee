r"""A server in a container and in Kubernetes, with TLS and a token. This module has no code.

The example serves an environment of its own, in `my_envs.py`; the tests of this package run the
commands, and check the manifests against the schemas of Kubernetes.

```python
import dm_env
import numpy as np
from dm_env import specs


class Countdown(dm_env.Environment):
    def __init__(self, start: int = 3):
        self._start = start

    def action_spec(self):
        return {"subtract": specs.BoundedArray((), np.int32, 1, 2)}

    def observation_spec(self):
        return {"value": specs.Array((), np.int64)}

    def reset(self):
        self._value = self._start
        return dm_env.restart({"value": np.int64(self._value)})

    def step(self, action):
        self._value -= int(action["subtract"])
        over = self._value <= 0
        return (dm_env.termination if over else dm_env.transition)(0.0, {"value": self._value})
```

## Certificates and a token

Other machines reach a server over TLS. Its certificate has the names and addresses that clients
connect to. With `openssl`, an authority of your own and a certificate that it issues:

```sh
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 \
    -keyout ca.key -out ca.crt -subj "/CN=engine authority" \
    -addext keyUsage=critical,keyCertSign,cRLSign
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes \
    -keyout server.key -out server.csr -subj /CN=engine
cat > server.ext <<END
subjectAltName=DNS:engine,DNS:localhost,IP:127.0.0.1
authorityKeyIdentifier=keyid
subjectKeyIdentifier=hash
END
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 \
    -out server.crt -extfile server.ext
openssl rand -hex 32 > token
chmod 600 ca.key server.key token
```

`ca.key` stays where it is. The server gets `server.crt`, `server.key` and `token`; clients get
`ca.crt` and `token`. With `--tls-ca` the server also requires a certificate of each client.

```sh
dm-env-rpc serve my_envs:Countdown --address localhost:50051 \
    --tls-cert server.crt --tls-key server.key --token-file token &
dm-env-rpc health localhost:50051 --tls-ca ca.crt --timeout 30
dm-env-rpc run localhost:50051 --tls-ca ca.crt --token-file token --episodes 2
kill -TERM $!
wait $!
```

In a program, that is `make("engine:50051", credentials=Tls(ca="ca.crt"), token=...)`.

## Health, and the end

`dm-env-rpc health ADDRESS` asks through the gRPC health service (`grpc.health.v1.Health/Check`),
which needs no token and counts as no client. It is for other gRPC servers, too. `--json` prints the
status for programs; `--timeout` is how long it waits for the server and its answer.

| exit code | what it means |
| --- | --- |
| 0 | SERVING |
| 1 | the server answers otherwise, or answers but has no health service |
| 2 | wrong usage, such as a file that does not exist |
| 3 | no connection, or no answer in time |

A server answers as soon as it listens. `dm-env-rpc serve` makes the environment once before that,
so one that cannot be made never becomes healthy; `--no-try` leaves that out.

On SIGTERM and SIGINT `dm-env-rpc serve` closes its port, ends the streams, closes the environments
and exits with 0. Clients get a ConnectionLostError. A program gives the streams time with
`server.stop(grace=60.0)`.

## A container

`requirements.txt` names this package with the extra `cli`, and what the environment needs:

```text
dm-env-rpc-client[cli]
```

The `Dockerfile` installs it in one stage and runs it in another, as a user without rights:

```dockerfile
FROM python:3.12-slim AS build
RUN python -m venv /opt/engine
COPY requirements.txt .
RUN /opt/engine/bin/pip install --no-cache-dir -r requirements.txt

FROM python:3.12-slim
RUN useradd --uid 10001 --no-create-home engine
COPY --from=build /opt/engine /opt/engine
WORKDIR /opt/app
COPY my_envs.py .
ENV PATH=/opt/engine/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001
EXPOSE 50051
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s \
    CMD ["dm-env-rpc", "health", "localhost:50051", "--tls-ca", "/run/engine/ca.crt"]
ENTRYPOINT ["dm-env-rpc", "serve", "my_envs:Countdown", "--address", "0.0.0.0:50051", "--json", \
    "--tls-cert", "/run/engine/server.crt", "--tls-key", "/run/engine/server.key", \
    "--token-file", "/run/engine/token"]
```

Keys and tokens are mounted, and are in no layer of the image. User 10001 has to be able to read
them:

```text
docker build --tag engine .
docker run --detach --name engine --read-only --tmpfs /tmp --cap-drop ALL \
    --publish 50051:50051 --volume "$PWD/secrets:/run/engine:ro" engine
docker inspect --format "{{.State.Health.Status}}" engine
docker stop engine
```

The command is process 1 of the container and handles SIGTERM, so `docker stop` ends it at once. The
log is JSON lines on stderr. Options that are added to `docker run` are added to the command:
`--processes 4` for environments that compute in Python, `--create start=5` for settings,
`--max-connections 64`. Limit the memory with `--memory`: the sizes of messages are limited by the
server, what the environment takes is not.

Do not set `DM_ENV_RPC_TLS_CA` in such a container: for `health` it names the authority of the
server, and for `serve` that of clients, which then need certificates.

## Kubernetes

The secret, from the files above:

```text
kubectl create secret generic engine --from-file=ca.crt --from-file=server.crt \
    --from-file=server.key --from-file=token
```

```yaml
apiVersion: apps/v1
kind: Deployment
metadata:
  name: engine
  labels: {app: engine}
spec:
  replicas: 2
  selector:
    matchLabels: {app: engine}
  template:
    metadata:
      labels: {app: engine}
    spec:
      automountServiceAccountToken: false
      terminationGracePeriodSeconds: 30
      securityContext:
        runAsNonRoot: true
        runAsUser: 10001
        runAsGroup: 10001
        fsGroup: 10001
        seccompProfile: {type: RuntimeDefault}
      containers:
        - name: engine
          image: registry.example/engine:1
          ports:
            - {name: grpc, containerPort: 50051}
          startupProbe:
            exec:
              command: [dm-env-rpc, health, "localhost:50051", --tls-ca, /run/engine/ca.crt]
            periodSeconds: 5
            timeoutSeconds: 10
            failureThreshold: 60
          readinessProbe:
            exec:
              command: [dm-env-rpc, health, "localhost:50051", --tls-ca, /run/engine/ca.crt]
            periodSeconds: 30
            timeoutSeconds: 10
          resources:
            requests: {cpu: "1", memory: 512Mi}
            limits: {memory: 1Gi}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL]}
          volumeMounts:
            - {name: secrets, mountPath: /run/engine, readOnly: true}
            - {name: tmp, mountPath: /tmp}
      volumes:
        - name: secrets
          secret: {secretName: engine, defaultMode: 0440}
        - name: tmp
          emptyDir: {}
---
apiVersion: v1
kind: Service
metadata:
  name: engine
  labels: {app: engine}
spec:
  clusterIP: None
  selector: {app: engine}
  ports:
    - {name: grpc, port: 50051, targetPort: grpc}
```

- **The Service is headless** (`clusterIP: None`). An environment is one HTTP/2 connection for as
  long as it is used. A cluster address chooses a pod for each connection, not for each request, so
  it balances little, and it hides the pods. The name of a headless Service resolves to the
  addresses of all pods that are ready; each connection resolves it anew.
- **Probes run `dm-env-rpc health`**, because the kubelet's own gRPC probes do not know TLS. A
  server in plaintext, where the network encrypts (a service mesh), is probed by the kubelet itself.
  It then runs with `--insecure` in the place of the `--tls-` options:

```yaml
startupProbe:
  grpc: {port: 50051}
  periodSeconds: 2
  failureThreshold: 150
readinessProbe:
  grpc: {port: 50051}
```

- **There is no liveness probe.** A restart ends the episodes of all clients of a pod, and an
  environment that computes for long is not dead. A process that ends is started again anyway.
- **An update ends connections.** Clients get a ConnectionLostError. With `restart=Restart()` the
  step is LAST instead, and they go on with the pods that are ready.
- **Secrets that change** are in the files of a running pod after a while; the server reads them
  when it starts: `kubectl rollout restart deployment/engine`.

A client in the same cluster and namespace: `make("engine:50051", credentials=Tls(ca="ca.crt"),
token=...)`. The certificate has to have the name that it uses, here `engine`.

## Metrics and traces

`pip install "dm-env-rpc-client[otel]" opentelemetry-distro opentelemetry-exporter-otlp`, and
`opentelemetry-instrument` before the command; see `dm_env_rpc_client.adaptors.opentelemetry`:

```text
ENTRYPOINT ["opentelemetry-instrument", "dm-env-rpc", "serve", "my_envs:Countdown"]
ENV OTEL_SERVICE_NAME=engine OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4317
```
"""
