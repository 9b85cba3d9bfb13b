{{- define "quelea.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "quelea.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "quelea.labels" -}}
{{ include "quelea.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "quelea.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "quelea.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "quelea.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}

{{- /* Values that would make a broker other than the one that was asked for. */ -}}
{{- define "quelea.check" -}}
{{- if and (gt (int .Values.replicas) 1) (not .Values.cluster.enabled) -}}
{{- fail "replicas: more than 1 needs cluster.enabled, as brokers without a cluster share nothing" -}}
{{- end -}}
{{- if and .Values.cluster.enabled (not .Values.cluster.servers) -}}
{{- fail "cluster.servers: cluster.enabled needs NATS servers, such as nats://nats-0.nats-headless:4222" -}}
{{- end -}}
{{- $tls := or .Values.listeners.tls.enabled .Values.listeners.wss.enabled -}}
{{- if and $tls (not .Values.tls.secretName) -}}
{{- fail "tls.secretName: listeners.tls and listeners.wss need a Secret with tls.crt and tls.key" -}}
{{- end -}}
{{- if and (ne .Values.tls.clientAuth "none") (not $tls) -}}
{{- fail "tls.clientAuth: client certificates need listeners.tls or listeners.wss" -}}
{{- end -}}
{{- $enabled := list -}}
{{- range $scheme, $listener := .Values.listeners -}}
{{- if $listener.enabled -}}{{- $enabled = append $enabled (int $listener.port) -}}{{- end -}}
{{- end -}}
{{- if not $enabled -}}
{{- fail "listeners: enable at least one of tcp, tls, ws and wss" -}}
{{- end -}}
{{- if ne (len $enabled) (len (uniq (append $enabled 9883))  | add -1 | int) -}}
{{- fail "listeners: each needs a port of its own, other than 9883, the port of HTTP" -}}
{{- end -}}
{{- end -}}

{{- define "quelea.config" -}}
# Made by the chart: see `values.yaml`.
[server]
data_dir = "/var/lib/quelea/data"

{{- range $scheme := list "tcp" "tls" "ws" "wss" }}
{{- $listener := get $.Values.listeners $scheme }}
{{- if $listener.enabled }}

[[listeners]]
name = {{ $scheme | quote }}
url = "{{ $scheme }}://*:{{ int $listener.port }}"
{{- if or (eq $scheme "tls") (eq $scheme "wss") }}
[listeners.tls]
certificate = "/etc/quelea-tls/tls.crt"
key = "/etc/quelea-tls/tls.key"
{{- if ne $.Values.tls.clientAuth "none" }}
client_ca = "/etc/quelea-tls/ca.crt"
client_auth = {{ $.Values.tls.clientAuth | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

[auth]
{{- if .Values.auth.allowAnonymous }}
allow_anonymous = true
{{- end }}
{{- if .Values.auth.existingSecret }}
password_file = "/etc/quelea-auth/passwords"
{{- else if not .Values.auth.allowAnonymous }}
password_file = "/etc/quelea/passwords"
{{- end }}

[http]
listen = "0.0.0.0:9883"
{{- if .Values.cluster.enabled }}

[durability]
level = "quorum"

# `node` is the host name, which is that of the pod.
[cluster]
name = {{ .Values.cluster.name | quote }}
servers = [{{ range $i, $server := .Values.cluster.servers }}{{ if $i }}, {{ end }}{{ $server | quote }}{{ end }}]
redirect = {{ .Values.cluster.redirect }}
{{- if .Values.cluster.existingSecret }}
password_file = "/etc/quelea-cluster/password"
{{- end }}
{{- end }}
{{- with .Values.extraConfig }}

{{ . | trim }}
{{- end }}
{{- end -}}

{{- define "quelea.env" -}}
{{- range $name, $value := .Values.settings }}
- name: QUELEA_{{ $name | replace "." "__" }}
  value: {{ if kindIs "float64" $value }}{{ int64 $value | quote }}{{ else }}{{ $value | quote }}{{ end }}
{{- end }}
{{- if .Values.cluster.enabled }}
{{- if .Values.cluster.existingSecret }}
- name: QUELEA_cluster__username
  valueFrom:
    secretKeyRef:
      name: {{ .Values.cluster.existingSecret }}
      key: username
{{- end }}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: QUELEA_cluster__advertise
  value: {{ include "quelea.advertise" . | quote }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* The first listener that clients would use. */ -}}
{{- define "quelea.advertise" -}}
{{- $port := 0 -}}
{{- range $scheme := list "tls" "tcp" "wss" "ws" -}}
{{- $listener := get $.Values.listeners $scheme -}}
{{- if and $listener.enabled (not $port) -}}{{- $port = int $listener.port -}}{{- end -}}
{{- end -}}
$(POD_NAME).{{ include "quelea.fullname" . }}-pods.$(POD_NAMESPACE).svc:{{ $port }}
{{- end -}}

{{- define "quelea.mounts" -}}
- name: config
  mountPath: /etc/quelea
  readOnly: true
{{- if .Values.tls.secretName }}
- name: tls
  mountPath: /etc/quelea-tls
  readOnly: true
{{- end }}
{{- if .Values.auth.existingSecret }}
- name: auth
  mountPath: /etc/quelea-auth
  readOnly: true
{{- end }}
{{- if and .Values.cluster.enabled .Values.cluster.existingSecret }}
- name: cluster
  mountPath: /etc/quelea-cluster
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "quelea.volumes" -}}
- name: config
  configMap:
    name: {{ include "quelea.fullname" . }}
{{- with .Values.tls.secretName }}
- name: tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- with .Values.auth.existingSecret }}
- name: auth
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- if and .Values.cluster.enabled .Values.cluster.existingSecret }}
- name: cluster
  secret:
    secretName: {{ .Values.cluster.existingSecret }}
    defaultMode: 0440
    items:
      - key: password
        path: password
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
