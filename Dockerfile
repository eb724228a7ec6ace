# One broker. Build: docker build -t ottla .   Run: see docs/operate/deploy.md
ARG PYTHON_VERSION=3.12

FROM python:${PYTHON_VERSION}-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
COPY tools ./tools
# EXTRAS="[spark]" adds Spark and a Java runtime for `ottla pipeline`.
ARG EXTRAS=""
RUN python -m venv /opt/ottla && /opt/ottla/bin/pip install --no-cache-dir ".${EXTRAS}"

FROM python:${PYTHON_VERSION}-slim
RUN useradd --system --uid 10001 --home-dir /var/lib/ottla --create-home ottla
COPY --from=build /opt/ottla /opt/ottla
ENV PATH=/opt/ottla/bin:$PATH
USER ottla
WORKDIR /var/lib/ottla
# A new volume takes over the owner of this directory.
VOLUME /var/lib/ottla
EXPOSE 9092 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s CMD ["ottla", "topic", "list", "--timeout", "5", "-o", "name"]
ENTRYPOINT ["ottla"]
# Without encryption and authentication: publish the port to this machine only, or see docs/operate/deploy.md.
CMD ["broker", "--data", "/var/lib/ottla", "--listener", "PLAINTEXT://0.0.0.0:9092", "--insecure", "--metrics", "0.0.0.0:9464"]
